"""Caffe's messages as protobuf classes. Written by tools/gen_proto.py from proto/caffe.proto; do not edit."""
# ruff: noqa

import base64
import zlib

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

_SERIALIZED = """
c-qB0NpK^{al%0oC;(&=JO*>m_U!B&tDWU=XLe_}TCG45GlK|R0x%q{9N~^8&;)xIKtni4jx5`fFUf~w%h$`t)AGX)N7x@b9Ma1n-
;U774~N4~%P(7w@Y|VLRoz|PAUWK%!!Mw#D(lF~%DakP?Ad+0W$x`+Zw`je*m;xw-
=+WAq+6+9V#&>}v)kA=2Ud20#oBf+7r7R@72Awz5&a({yt+nU^DNe%V0Gly%tmA_yTlT$eY4-
Ux}#iF7A~^cear6bk8?3uq_LSpyFK2|#l4bv+Z>y@85k*wBT<RHx0joBORlq-5zZ<%2T-Z?<-6{r?|L&n$5L%)vfH%`>MsG%5rXzrV7EzGp})-
*+!gIut+6x2k#?bIL<<j(L{0UtMcB-
?IiB=js@}2*7l0VKW<o<YBNt34$fm_=artSi?3%k)7Z#6|S;qFdjydKFpyg***__pHIc=*=i%)FK?3vw>rGG2R79QK(t~IQgL$ha%ts%6Hk6!?ma3;x(
M9b-q#%6zvNIx*U6N{!4MWn;_!NO=x?zeeFvx4t?u>0|zW%g-avcYKFhB=7_SvETwn8Oj@l9`R@8~3u0S?0hT+Gf9H8GUEigDr^MnqR-
^!(m{?cXvel3N+uCeVnft#fpBPrTyiA6;Y#oDw|?+_`mwB2^$L^`JF;N|D>Qr_1}xKbj2Eb*Z@@b;V;KV_H{PfHD6dmBv0Jgi@sUy+$&*~2MYUQ_XiWC
+ZezuvLt;Pcp~CZG?Tr|=J%W-EOggweROCJ+k`5)J6RnFc5IF<LRe~j$u}6xv4K_D^Nh8v-
ATu=`+JVEx!Kz+#Rue6pO{LEoa%2O3BlxZZEAGh*GOHI{@*FK&~Um3{)NKI#zWKY8+~gm5CtSXwnk$riOS_ui472hk(q3cWq45^%7C`K<GjG;cFmDxbc
dXHu%K;^1~5rN#taSsw8ncQ;=uvBLu24{?bZt-nk4Q($L#e?IIY+Td=8vL0ATcqT{u0f4@WSUqLO8nKBQx3w5=8lm6q*BV{0(7zij0)G!*cuQQsVl_ML
HVUe5U(TabmuU}){xN4W)>#U++;D~NY!{#|;XrACBLqX*|Rw@B1}!?yteY>V$QG~S3ksXc>9C)?J64OC>eb6Gi?YiyBl+j4q90)R<pG|Dac2L^^VH2ZC
*XN)Z13(HU!qZ7Es7ToPL1~_hRg$VGRN`M{#yvgR}ZVP}_qN8I0RH{AapH>QF0uW7(P<MwVy*|&MJc(N@#iz~B%!T96%uU8<y1d~<n(EYsI$L&k&fJ4R
3>qPKi6$H$4<}akDq9*_ok<sX&6mxw?eq=eo|lPxMoa6y4W^1KFS)@@XuJ_?JlTc~o@rZM;N@3|Z_eDa-dKB>eT6NF!()$avnvMAUGq)t97~(fli3m5{
|YCLdw5ikqB%R)=`3Dg^R2EuFgioCZNr%u<*w6cNDx3_c+Lzu0k6tVsy=!LF4i;0xf`^$+b69}Ks+XZjnrnblCOVIt5=&<m~L{|8;PU$8jT)byZh)7@Q
I{6sO!0#90^$Q2o}O+)h)s{Ve2YeBvxh|+Q2}DR(sO2a<_e00an5f`6zdXIFrtj7NCM}&wp~U2goo-BYO{)foKIz&CG!TOBo@Oe<WmM5f~RBtczzKc+=
Q2CopWE@bo&N^;Nb4%RMv(Fd^y^W;B{~$GK1Y#qjHFUPVkc!QxN1A3p$DwZQyH0)68OV;&30&av25?HRO#Kfn#3{+X;t3c_N*3e=}rqEcuy3-
#)b5PIABC-wZc7R8TxxdHvxv>3L7n(acVnb+bt5BMr;Gy3-
;EXDifX9ENyG2e*bh^ek+4*OPHuzWndH`v_1JpzU31u^_%6d@$j)?_$@{WXv(Jt=UJrLlc)(&O|yBkBM3w;lq)E)Y=yQpbjM0MJ}AAm9p1Bbs}bIO6|?
5+bSB0R{4C-vC*#4<d%<KfkW|W>&-Ujd&BVg-TBsI`4YwXoiGx$Kq05KO}vD`m9g7$PP~K7tbCP8NObr2xJ*Aib;i!j}n){v+oeYf}$B3_zysnrgPO8S
gnAX@_;dr`9q6~lqk*Q75_{m+}&-
vx3zDzJ|bGmvN@2TJtWVVRMA$DQ^SGe#ZtA?@36E23ffhpSubuifzsv~s}<_yVxv*qDF8wKKJb=+YNSp#Elx3~8qj@ro$=V|3B3sf!q^!IL?E33DH!|&
b9EopZ7v~ZLsaHr$koZ`P9ViwY|ietx|6n4m(EQQ3$)MB(mLWTlP9-yDS{nC5vyz-tf+z60SKe*9QHvQiQP(M-
z7QRA0cxUBCt(DP4{)tlr4x)c^LjQV}vLUXAxY^uhv1O*ZMx2H(PKB&DIM6u}2V>d=Pojz=K)?`7-
Pv>2jD3!Cdge3_E4>NPz%*0(h!`*bhN$QMCuL#a00V@Gu(N2V9N`Sesz4tFW@6y1Wgx2%Q`_-
3bY34*wy+Usd5{8wHVQNC}{iLWl$t&h%QZvrHTI(wWE=b_u|5Cv5Y259S@FwI{va3&S@~kH9Yb!LUhaFwhG~&T*)IXs`mW_h3MyvW^C#y%W-
?3P%I4?E|*3-`;!RpVuHn7AU6FX+2_#1O|&7xOn&y0bU6JR;h`CihaA^QTBNlLd8>TqV6yN+C5Zsd~+Rz0E^f}o$PyT33bp8DvrKE#{_%L4=Y-
!;}Uou#1Ncd&@|*~CsV+oRgE`NcB4C#1bGnJjZ(d$ptWc9K$!a1co;%!ncAp}gkgFIa+ssgFy)<!LR13>jHrG`w0{vIsv58NVD7RM8CC+~%LH*=fjIQD
e>hV^t2+_Re<F0I>Q?EQGNX~*={a^=0DL7hqXw^6VVu3O$D4jK48!Y{RgAi5M{$Us3az4nwaO~SW`AEa|LM>wnr8p0pF$VL`=FKVJ6*YsuSP-
?+LTQc<^?(>$OZqte=QQ)_~+C}-S~SfJ$NzRcX{5=L_!R=M)iJME;aCN&d)}|o2hQk>tIX_BuDwVNQk-
`wVK!XEtbIrngfaDpO1t#rp_BEBXk`}j=vBdq2zRw5%xe8A6s(GUk{J)m^V;1hb#r3c=$$mbLz5*f-
S4JYsnq`#W1!CSnUD40YqbW<?4Sa5~doc^_o9q+O9cn?UO4^0R3`!W}Das-CPRNyj}d2FwzSCJ%m~9+NNZF-we-c6Ka)Jk6Na?if@Hi-N0%EfV-kNz^{
e@ihV^8z=T>LCq?^T3r}bZYL)#P$PWSY?J$<y_JNI;)&~dt^=TU~ny4rM$tq9(Z%jb}R;w#Q1Dm)1%_%E_TCe%%*s|FNogZ|<w*TONp9A`}`MhkWp8e0
VCDhsNUFXOz+5RdLl1*i7w&@(Hq74obSgk#D9&yOO4j-
f%Z{PvF4I44EouPrFa<IRNgmi`)Hh}>>xNWxDhCloODvHD3MnZbtwrm+xAD*(D*9+S86Vsjj-
|>EKOzWp0n)>Aj^PRZA50eBQHuSovXZ65tTaJIb{viyxgKd<p(*GsK&K;-
7g9S=wjcg@hlFjz);m{e9!Q?v5mRXXH40#{We#`LaNfLeV#vZU0GT)LIAfO`d{^2In1(xET=$6xkj%WQHpJ$BMb%y2()y2F<hBgc+mYWEPmpWA|LbmUC
8f!9iY$}eTudcHNt7oGhvp*u|+nDUAAdj`jTW$l47!fA+$*n8Uz>5yar%Oc-KvgI2gru}gNThD_dSyS}VrfvI&Aw#$^PvqcVD-okr2l1vWz^HP%+huTN
DNe6irqw{C!jA0i|;PbbVe3&4_}PT$UDc`axP_3YjP9M?Bq+uZGDq1hU(D4^Y~e*1ZI1Z@pf7SE%?oRbL*+mD1Nb^MX^z(S}ABTy~Gy7b|8=_Sm?$_w1
|v|{Fq0!8^pU8S}u7x^fFrrT8Kc1Xgs0fh7o~?pW57UqH>(H7>9Rvn`Klcn&JVf$hGLLD1Dem01F@bBeoE<G*^H@bK8`MERR`={vpdw5w|&}O@OL9U1!
(qlG};L@)FtC*two_fcms_#_j?7Xe*<BUuKrYtieclUdYM&KsQ-NmArB`5sBC(mgrA<hIwT9uziQk?oo`4dQ%T%Ab18lnmg8RhEvl63!hLZn9pT4-
?cjECy>riKNHfw5ogO&&1hgcI8V;nId;+EOIioi_e3|`MGIRsFx%w+$)L;UBWu{Vx}3AcsSrq^Gjt{c@(I#D&9hlJ|G-
<x3zPxXHzQ&>0u^(op#o((%|`$vP6g1=@ze%Blax$FlpGS15+w;SeZh`=C4w9A2oug7+GGMHhs0qr+4tG3)rYOHD5^BS{@N*yi@ODCy)n04c$|M$YPzJ
ONh-O*7C2uAUS{{!f%8-J$#>imZM(~vP8M;hzs_cPujn!s{c_H+m4E!W0GtE=KHIKTw5YxYr%_ST0<^o1TjuQTjYNnrqkkvLGO7-
Po9awpj&4{{2*aqPM@7EHq<rH#v!EBmo+2D)<lcCabT%MKF*0V1KC%ZyHbP#^VVKtHw?#<$;&EP}yW5)^bEU#gp|ri3)!7oqvIxKn37hl}2!|LWh89d(
63%`7B8vhzAX@YUhz34fD#O2sewS$>Khg!y_cX*^6NfgocK3n)oe0ZL@gM=kld>Wxo~J9EMDZz}u@M!A(92ukXVuGF;K$U>TbQ9wHv?n#_*k_5hY_ZQ+
*a?gqyyS0C&ox9gcfWs3#x;SSmRk4=h1Sky*-+E6ewQ<4vo1S=(eGl7txO3Kl)9UbUQ$#*Xq@69%6ycfXd-
dIsXNq@oOxt*ik^AW_Pe}y8KfAlL(s+n1It*p^_XB4Rc4|?82Naepb#lbE;I>hK2cEff|eN%BThp3Wkp&mh9VmZt!3Yq^uS)wL=nYnI+&%89pHk-Ro7h
81^g%*@1e}Ioej)+-
QHYw<p+vE17PwrD+~VKs>Sz!wW~~yDU4!!+4*?DIJ9qpMIh{l60_*Xz8B53YrsUpUg7&0?NVPbs(JIin8n!Z{)|~cPn9j$MO1!S)LD<34d!Cv2Pt3;;6
gAZyBTYhXz0K%<Cj!j|A6C`N$aL`p}`+akmXLnI_ynWGmAhtwGF$)UqE$5OkW8^-
QWq=y1i(dbmzMjdJcY@(AQ8fu=tiI3r8h7ySX74|qmg9vV4;hr;nyoMIpE_<k=6-S}P5D;QL2nL-
m2D)Ix5>qWi9uK2DsHbqzQwY%>;07E84CiT$jAQO*=&XIp8Ize@6xv`Mns#hBgW9w<YQYn-gp!G*Sl1XLvvhTQx(JXa&<+v^b3K8Izd7}V12FC%8pJns
Ui_NFSiYx@tdnP65i)?9{LtbTE5vlSi$&Y?%O6I&LP3es5ZI)I%_t#j~H69I_LnkaKPTZjJnZOf9a2)+3x#v1;f;<8qo}J=1^HJfkxs>`h<4g<13LddI
#uo%1eeHy>0u_|4@xIgEKzSRq1foK6O1(eknF3@!#HXp?Ga(gxHl%{jg;el_C^=o-
f7hkPREWSs3k<60U|b0UQiNcLEBaE!7}z|(r75hR328y0{_EJ9TmbQ{La_u|BlB=7wHVTC@))T{yT8$_0;xBe#Vw%TGm-
i=mUPEMr3pvmjUSh))jFJ<$80_j2-
0LmUc}FZPUA}!TL?xi;HUsnCS55WGBTl&=M;d{BySBE=0hPhudzj*BVluoKd@+?favnx?}N@f#q+xo7ALszA;A$ntKc|Y(x_>3{>fsJp>>4v!`QdmZL6
<jlInj<O9@3U@?ov|_KEQhuSjav0Xa-Zf~(pxg#`F)$_M6Y(U@C=|Ds4E@Tc*4Erx~VLcXHK^>0U5MvXL`XY+llV^Si(sOt<|pXgflp?mCjw#(JyqKP3
Xa3&i6ai)c$Q!m2`!)RLe`E6pZ*84|bEd)X*|LYzf)HXcbM<Jp!n+acGS}64Dalo*u9Bll_cB2HyQbV$!f$|Wp;=)^U1G^6TkGb)>;CCG&nSK-
O&QMJF#Ki;}AM0^(b<{Jh?iE;_8bVqST9s>D9<YoWWPTW!?$zVM(Vq<QZ^F3ti9`zg7sH%l?fM;-of6rG-Eu?X?ormi8)Zw=V%h&czM%6gz1K0kY0kMm
6|CCzS0(&aDS&eQyh*7BuRj2DD1`}4))9ss+MeQYPRxpAdy4W)<A>&OfLV|&v$YR`3hl*_suBc@s0<lV{}o|rCF+hDW-
s8wZcCeutDFynE*1^bwhug{hn=KxD}X^F`#;q`{$rVGp*t9Nq#h8CUGA&}+IoqHQGeng&q9<Li#&w(mdIF~3F%<L8SwiPl#1(SAkLnUfe2bBHNvY8bL6
ZFUP?$%X)u#6d1@xz)Fe3eagyLtXH9}jpPmFaCD$zTadXY)UpCh)lrpyP2~x(iPnI&a_;FIkvL~mEg>t!;PS53fG%ej|`K7Xr0%>3?r=@{S&1hSFsf@N
@>gl;tQ%^(5lDX59CEpI`Y@L6Zl&xtQoflpvqcfa`d+{amaHnNWUVfRZNi`4e$|-
qxf&93ur{%}_lBut~bTaiTC%05G8TFGh83VcE*NJaVNveMJEJ@YAjK3SFWc-El7GL`qd5bqs&s#h`Mf%pur${S#!M9J&3s!T>@0^lbJ}<NLe>g{ybdxQ
hgfo0M6#gA+=GSkXBuD+%4fKDCv!o|jWqQJ=@ESsXv$2yeY1io@%huMjdVcEzP!zDH{si@nE7*RsQYwMr38h=r%2vJ!mM5qW@V{9{<zuH{l&Xz}b_1{9
K<Q4k^sHH|R``vW?R+z@VX{VMyWp?9Noq>HTEmN_v#8B%KP#6%FsS`CbS4&_ZIz1KVBhlY=MbP!YCbPE3fg(pg9=}$X|K`!)Kb3LEL5}vsM1LkU%VG|e
5dFW#;CzC42OAItUM7jzJzNkme;qcB`t+@#d03%2sn*XE><2_pX7^T1{q#dDbx)Nay{E>YV$Y`5F^?Gj#Vy{t97x2%h}89d>M4GVx?Lx=1b7UlOn2Wyf
2M3x}A!q;{s~cY6+&LEuxNAt3EH(wF`*6dZF}8%VLX0@kzN_+}4(|SJ(ydVQ?300rsI<`+)a*kvA?CDq98ZRr;ttZsJxhgSwO!AH3}f`4VcSVpChCzoj
Aoy@CTb^OdLCIb758Vr9GfoUbW|_-#I|7aC8irETr%nQpdxI{_-
^+8OS)sG*3M2v{Z1==NFT$3!A#&gxK_JrzKBO5K1D%#Zs;$u@Gmo;=keDeY;`<;rA{^y;QUUfm#mLe@kmY@PP(C^g`a2?ZSHg8_#HU%<gL7&X;kT=ZOv
2{ahVUd&2IA=!&G-V&`JA0>eKQOR=HT3qp)V-
%TKmEF4v|N2WR{BKQF`0tBSUxe;~oX2I*G%TPHza9Fvhd)uRn5pmhs}}^cYpOo<nW`6fwclLbkON<YUBf!pWPR6XvS!&F1_Cit;4|L!=roqOfrt0J%X<
D`;%7YvnJ<|5zAU}W=0!wOn!}$91SWksTzN^I8`G?WAI`munQ&&C^~czJAVJ>q%|%W<kgz_1Aub==YI;?krAwGUS2hR5vDFLk8uuXxeytGbNZgs{(QWd
G==WGcc9Fe7cQ|_@l&F{yzEN}sIIh_nbh*n0Z!ZQiQkVG!#(+EKBGa&~IT~0kdA4KzN&rzR-P?uVLsuM)=*#N7$d<6X4?#gThi$_-
u!dc8z$ZbK&|R=H>Q>^UsYf7Zo`%QgA|Zp7aX+N9`ytNKt(@^g1}o`x3;oX`EKO;G5_8vB783-
Wq200jz|n|&mFV1cHpgcnV+UEk)+f4on=QIibu(gPVI?t$Jxuy_mnj@!=Xe>gav(0@35(rZThqTqNh?ZD?R%gfVjiyhG>GaiQd`p}U0|Qx0#RP5BP|lR
vN8HimXIw;6{EKN&T|<wl<H2QUdq=%(0&~z<YrvAH#eOlB>khF%uK|u7x)#GUq_hh8T0DoyClKaQh?#(n+$dfueXxtkM7>KoFRXdguq>C7}d*+iF|tu8
n5EL27DfczrNr;WOEb5(XMkO_VN6*ym4BE{&}|Gb@v3tESfDOZ<WO0+l-
lRJMs9)O85={RO){Yxbj~KnDp=pY8(Fu2BfK;8))#hPfJntaJ47jIJ9Z^ndVK);A%oFltdO-p?<-
gpzH@V^35vnRsDD3Y$2F4z5vR_(Ao9)O`fGh+PUw7^J~Xvor`a3y%B$&uh#;v3S~mC3Q@`XEP>%&8ic$0uAeYSO*Gv|fKku@b+gIij%|@?KPwE-
6uoyM#3r|VPMUksYmGvb&sy-
>gqLKKqPdH58KBmmVC>CZJK`Bv4`K_9k;lcR(J1FjC7I@ZfvsX$2@ItIl^OZUwo%J(YcYL;CFJ_hvXU!=p5Uuotk<jc0=^{x{niV$LcVEK3VG0~!Lrhe
EahJWoOG}ZpjN~H>xDdjgusR1Zrx3gr*Z7Ql&@@kvD&z=&FGKVQp4<yYt~@k7n`7?xf+Zc6U=xI76Ib*A4QReDE^%QVNt>pzF1&bUs4kzR?(G#3D0U$8
4t)(YLg5v_^UeR1gzxU?qsOG>!Y#whXbo4-
a*1_oE*@JgC+oWGp8nI%~(UH9Z0}}&PRZT0ii+7C4I;=uS)UqDsK8INQ9wUU31?OSz4k$)JPm$JMezT*dHCJ0SL7kSQcsNuEO#cQMNSg76qu5yF(=8zJ
-niWfMR(@YV6BPuw@Bax5dA9URPked;{Tgx7Q_sUSYBYC<S;pQHlH*`HXvt65nH`V1EGq32{N%y|S%kcZ1TM8Y>`UmYJlIlYokfXT{BY*9SJ;|$x}E4<
5}Bf|5$$+F?=Bw>aqv?*~hg=<q%57U1)!d8#DBX*Z%M0iXn9$`&TQDRovJV_;^XAXFnjoY>FvLwm@t{ueACPegqjj#(RT*U%;h&D65o??we<mw7r!es0
Y&xhf2vfJ`v$Qsly3RS~r`NTZS=Q>+)?}xea-{_1L3mjI9iZdCXe6=&Q+Tg9H+0$-4fl+X!;`Gbr5k6+p015#3QQ$yi`n{16jEBNx-
=biud+!Awhl_c+b+Etx96_ddU<CslIi?ANr)>}EVY(N>P`JRdqK4KdUaN|VY|@OV6Oa1vKx%mB<Fb4zj<6hdjXzP;lX`I`guA&@arc85%N={;Zz^$ILL
(8Ki|9KTdv{c165LeMaUU1_3>cn0>D=VWoVOJP?!<k3g!=h`rJ9;EQ}}Oqzdpy3cte06qS<hESMbv0-
7RP>wCrlV0$TPex^FBXd7>8YO}*Rfg8QbPyoLZ~&Db1vtg$LtF0o}`m3wyE!p0ss@)y)VP94~z3BRAl{BU3lxivm8{;nFnH-$(c`rwJaUrn-
=>Gw`6ECc(--Pk^B<I|^ISiM_vT3A3BNjA#WYV)a4x(EFs^WXDz$o0iHPVEp3nmxBi>2wr6DH&C84cY)D#*d-
I86PE9(EdX1>)Y`=r_QR3AT*`<8o6x?+r=&PKTl_RzJ!HW*(#c#{DLl=Zi7b0G{eN{=OgK{R=Vk?a82fe2L{r1jK0+|a3#<=sS_x;u?*B4#myIa3u;nW
BTd7MH(}*O%zvB{af_Yj1n(xq`UqcnhwlbkMb;*)dC+CdP9Ib<yQN-=f}<oZGV(;)UBr?(d|{Bim-RQrJgb3$&w;fq_36C|OL5%rl`YfCUO#>335M2}M
vr%;@Fb713YBH8oRwvrV=3WMAUk)JvyHd!V~V6oFEEJmSfBnXOZiTnxZUt6bg8@N53KjwEbTu^eh)sqOD4kzbgwDt(l>UqS*+#j&0@2_ld)BThxQwcd0
6oUf;6UJh~9%uKh4*-
jlvi5<yr~f`uyz(%TBq*eF<Z*w6~*yiBIb(P8yJ3{ON<2&hoqza_RXm^N5t|xSMi)Z%u!NX`zetpaYP8NE%v3|I;X24Bw(he>OV0cv5*xym5(cAD%BQy
vqTP9F}HTe6MQ{6!m9`#qq_0pzV@yQ_E-N5O%M_hnSOj>R7Tb0tn*skh2i-
r{FVh{1HyNwrR<`+TQn}czkooy(8%H1^poypyH(S5FVa&*kcUVkq=2)v=qI=N?s7tzYBXFzJQ<IVvJwi_X(VvC*IlTMV!|>FKlk*%j!d%ZlY&acJ0eb1
8W`K_~>=-Nm+r~zRr?vx41CgvACOE+%8nL$el}UhCdqyWzBk?-m}H%78=fx{{f{S`aS
"""

DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(zlib.decompress(base64.b85decode(_SERIALIZED.replace("\n", ""))))
if DESCRIPTOR is None:  # the pure Python implementation answers with nothing
    DESCRIPTOR = descriptor_pool.Default().FindFileByName("minicaffe/proto/caffe.proto")

for _name, _message in DESCRIPTOR.message_types_by_name.items():
    globals()[_name] = message_factory.GetMessageClass(_message)
for _name, _enum in DESCRIPTOR.enum_types_by_name.items():
    globals()[_name] = EnumTypeWrapper(_enum)
    globals().update((_value.name, _value.number) for _value in _enum.values)
